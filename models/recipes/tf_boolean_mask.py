"""``tf.boolean_mask`` with a mask of rank 2, as tf2onnx writes it.

    pip install tensorflow==2.21.0 tf2onnx==1.17.0
    python models/recipes/tf_boolean_mask.py OUT.onnx

The mask is flattened first: Reshape -> NonZero -> Transpose -> Squeeze -> Gather, with output names
such as "boolean_mask/Where:0". ``models/tf_boolean_mask.onnx`` was exported with TensorFlow 2.21.0
and tf2onnx 1.17.0, opset 17, from this function; the numbers in generated names may differ.
"""

import sys

import tensorflow as tf
import tf2onnx

if __name__ == "__main__":
    tf2onnx.convert.from_function(
        tf.function(tf.boolean_mask),
        input_signature=[
            tf.TensorSpec([None, 5, 3], tf.float32, name="x0"),
            tf.TensorSpec([None, 5], tf.bool, name="x1"),
        ],
        opset=17,
        output_path=sys.argv[1],
    )
