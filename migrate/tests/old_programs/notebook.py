#!/usr/bin/env python
# coding: utf-8

# # An LSTM by hand
# Exported from a notebook.

# In[1]:


import flax.linen as nn
import jax
import jax.numpy as jnp


# In[2]:


# %matplotlib inline
hidden_size = 4
key = jax.random.PRNGKey(0)
x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)


# In[3]:


lstm = nn.LSTMCell()
carry = lstm.initialize_carry(key, (x.shape[0],), hidden_size)
params = lstm.init(key, carry, x)
carry, out = lstm.apply(params, carry, x)
out.shape


# In[4]:


gru = nn.GRUCell(); h = nn.GRUCell.initialize_carry(key, (2,), hidden_size); gru_params = gru.init(key, h, x)


# In[ ]:


def run():
    return params, carry, out, gru_params
