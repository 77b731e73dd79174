"""A worker of TensorFlow's MultiWorkerMirroredStrategy; TF_CONFIG comes from the launcher."""

import json
import os

import tensorflow as tf
from steps import train

if __name__ == "__main__":
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step() -> tf.Tensor:
        """Sum over all workers."""
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.ones(4)), axis=None)

    train(rank, lambda: step().numpy())
