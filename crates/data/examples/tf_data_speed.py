import sys, time, tensorflow as tf
root, seconds = sys.argv[1], float(sys.argv[2])
files = tf.data.Dataset.list_files(root + '/*/*.jpg', shuffle=True, seed=42)
mean = tf.constant([0.485, 0.456, 0.406]) * 255; dev = tf.constant([0.229, 0.224, 0.225]) * 255
def load(path, seed):
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    shape = tf.shape(image)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(shape, tf.zeros([0, 0, 4]), seed, min_object_covered=0.0,
        area_range=[0.08, 1.0], aspect_ratio_range=[0.75, 4/3], max_attempts=10, use_image_if_no_bounding_boxes=True)
    image = tf.image.resize(tf.slice(image, begin, size), [224, 224])
    image = tf.image.stateless_random_flip_left_right(image, seed)
    return (image - mean) / dev
fused = len(sys.argv) > 3
def load_fused(path, seed):
    data = tf.io.read_file(path)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(tf.io.extract_jpeg_shape(data), tf.zeros([0, 0, 4]), seed, min_object_covered=0.0,
        area_range=[0.08, 1.0], aspect_ratio_range=[0.75, 4/3], max_attempts=10, use_image_if_no_bounding_boxes=True)
    y, x, _ = tf.unstack(begin); h, w, _ = tf.unstack(size)
    image = tf.image.resize(tf.io.decode_and_crop_jpeg(data, tf.stack([y, x, h, w]), channels=3), [224, 224])
    image = tf.image.stateless_random_flip_left_right(image, seed)
    return (image - mean) / dev
seeds = tf.data.Dataset.random(seed=1).batch(2)
data = tf.data.Dataset.zip((files.repeat(), seeds)).map(load_fused if fused else load, num_parallel_calls=tf.data.AUTOTUNE).batch(64).prefetch(tf.data.AUTOTUNE)
it = iter(data); next(it)
start, n = time.time(), 0
while time.time() - start < seconds:
    n += int(next(it).shape[0])
print(f'tf.data {"decode_and_crop" if fused else "decode, crop"}: {n / (time.time() - start):.0f} samples/s')
