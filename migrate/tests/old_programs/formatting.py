"""Odd but legal spacing, trailing commas, and parentheses that nobody needs."""
import flax.linen as nn, jax, jax.numpy as jnp

key = jax.random.PRNGKey( 0 )
def carries( ):
    a = nn . LSTMCell . initialize_carry( key , ( 2, ) , 4 )
    b = nn.GRUCell.initialize_carry(key,(2,),(4),)
    c = (nn.GRUCell).initialize_carry((key), ((2), 3), size = 4)
    d = nn.LSTMCell.initialize_carry(size=4, rng=key, batch_dims=(2,))
    e = nn.LSTMCell.initialize_carry(key, [2, 3][:1] and (2,), 2 * 2)
    return a, b, c, d, e

class Model( nn.Module ) :
    @nn.compact
    def __call__( self , carry , x ) :
        return nn.LSTMCell( )( carry , x )

def run( ) :
    a, *others = carries( )
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    return a, others, Model( ).init_with_output(key, a, x)
