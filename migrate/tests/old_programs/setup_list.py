"""Pattern 7: a list of cells in setup."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Deep(nn.Module):
    hidden: int
    layers: int = 2

    def setup(self):
        self.cells = [nn.GRUCell() for _ in range(self.layers)]

    def __call__(self, x):
        carries = [
            cell.initialize_carry(jax.random.PRNGKey(0), (x.shape[0],), self.hidden)
            for cell in self.cells
        ]
        out = []
        for k, cell in enumerate(self.cells):
            carries[k], x = cell(carries[k], x)
            out.append(x)
        return carries, out


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    return Deep(5).init_with_output(jax.random.PRNGKey(0), x)
