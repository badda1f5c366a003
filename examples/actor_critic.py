"""Recurrent actor-critic (A2C): an agent that must remember a cue.

    python examples/actor_critic.py

An episode shows a cue, then nothing for 3 to 7 steps, then asks for the cue: without
memory the mean reward is 0.5. The carry goes on from one rollout to the next; `resets`
restart rows whose episode has ended. The usual idiom, ScannedRNN, gets equal rewards.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import rnncells

FEATURES, ENVS = 32, 64


def new_episodes(key):
    cue, length = jax.random.randint(key, (2, ENVS), 0, jnp.array([[2], [5]]))
    return cue, jnp.zeros(ENVS, int), 5 + length


def observe(env):
    cue, time, length = env
    shown = jnp.where(time == 0, 2.0 * cue - 1, 0.0)
    return jnp.stack([shown, 1.0 * (time == length - 1)], axis=-1)


def act(env, action, key):
    cue, time, length = env
    done = time == length - 1
    later = (cue, time + 1, length)
    env = jax.tree.map(partial(jnp.where, done), new_episodes(key), later)
    return env, 1.0 * (done & (action == cue)), done


class ScannedRNN(nn.Module):
    @partial(nn.scan, variable_broadcast="params", split_rngs={"params": False})
    @nn.compact
    def __call__(self, carry, inputs, resets):
        carry = jnp.where(resets[:, None], 0.0, carry)
        return nn.GRUCell(FEATURES)(carry, inputs)


class ActorCritic(nn.Module):
    scanned: bool = False

    @nn.compact
    def __call__(self, carry, x, resets):  # (time, envs, 2), (time, envs)
        if self.scanned:
            carry, y = ScannedRNN()(carry, x, resets)
        else:
            rnn = rnncells.RNN(rnncells.GRUCell(FEATURES), time_major=True)
            carry, y = rnn(x, initial_carry=carry, resets=resets, return_carry=True)
        return carry, nn.Dense(2)(y), nn.Dense(1)(y)[..., 0]


def rollout(model, params, start, key, steps):
    def step(state, key):
        env, carry, reset = state
        act_key, env_key = jax.random.split(key)
        x = observe(env)
        carry, logits, _ = model.apply(params, carry, x[None], reset[None])
        action = jax.random.categorical(act_key, logits[0])
        env, reward, done = act(env, action, env_key)
        # The step after the last one of an episode is a first step.
        return (env, carry, done), (x, reset, action, reward, done)

    return jax.lax.scan(step, start, jax.random.split(key, steps))


def loss(params, start, key, steps, gamma):
    model, fixed = ActorCritic(), jax.lax.stop_gradient(params)
    end, (x, resets, actions, reward, done) = rollout(model, fixed, start, key, steps)
    last = model.apply(fixed, end[1], observe(end[0])[None], end[2][None])[2][0]

    def add(later, now):
        value = now[0] + gamma * jnp.where(now[1], 0.0, later)
        return value, value

    _, returns = jax.lax.scan(add, last, (reward, done), reverse=True)
    _, logits, values = model.apply(params, start[1], x, resets)
    log_p = -optax.softmax_cross_entropy_with_integer_labels(logits, actions)
    errors = returns - values
    gain = jnp.mean(log_p * jax.lax.stop_gradient(errors))
    return 0.5 * jnp.mean(errors**2) - gain, (end, reward.sum() / done.sum())


def main(updates=200, steps=20, gamma=0.95, test_steps=200):
    env, carry = new_episodes(jax.random.key(0)), jnp.zeros((ENVS, FEATURES))
    start = env, carry, jnp.ones(ENVS, bool)
    x, resets = observe(env)[None], start[2][None]
    params = ActorCritic().init(jax.random.key(1), carry, x, resets)
    optimizer = optax.adam(5e-3)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    gradient = jax.jit(jax.grad(loss, has_aux=True), static_argnames=("steps", "gamma"))
    for k, key in enumerate(jax.random.split(jax.random.key(2), updates)):
        grads, (start, score) = gradient(params, start, key, steps=steps, gamma=gamma)
        change, state = update(grads, state)
        params = optax.apply_updates(params, change)
        if k % 50 == 0:
            print(f"update {k}: mean reward of an episode {score:.2f}")

    scanned = dict(params["params"])
    scanned["ScannedRNN_0"] = {"GRUCell_0": scanned.pop("GRUCell_0")}
    models, scores = {ActorCritic(): params, ActorCritic(True): {"params": scanned}}, []
    for model, own in models.items():
        run = jax.jit(partial(rollout, model, steps=test_steps))
        *_, reward, done = run(own, start, jax.random.key(3))[1]
        scores.append(float(reward.sum() / done.sum()))
    print("mean rewards of rnncells and of ScannedRNN:", *scores)
    return scores


if __name__ == "__main__":
    main()
