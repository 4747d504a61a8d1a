//! ResNet-18 (He et al. 2016).

use unisono::{BatchNorm, Conv2d, Dense, GlobalAvgPool2d, MaxPool2d, Relu, Residual, Sequential};

/// Returns ResNet-18. Its first convolution has `width` channels.
pub fn resnet18(width: usize, classes: usize) -> Sequential {
    let stem = normed(width, 7, 2).add(Relu).add(MaxPool2d::new(3).stride(2).padding(1));
    let body = [1, 2, 4, 8].into_iter().fold(stem, |network, times| {
        let first = block(times * width, if times > 1 { 2 } else { 1 });
        network.add(first).add(block(times * width, 1))
    });
    body.add(GlobalAvgPool2d).add(Dense::new(classes))
}

/// Returns two convolutions around which the input is added. With a stride, a convolution fits it to the sum.
fn block(channels: usize, stride: usize) -> Sequential {
    let inner = normed(channels, 3, stride).add(Relu).add(normed(channels, 3, 1));
    let block = Residual::new(inner);
    let block = if stride > 1 { block.shortcut(normed(channels, 1, stride)) } else { block };
    Sequential::new().add(block).add(Relu)
}

/// Returns a convolution without a bias that keeps the rows and columns, divided by its stride, and a batch
/// norm.
pub fn normed(channels: usize, kernel: usize, stride: usize) -> Sequential {
    let conv = Conv2d::new(channels, kernel).padding(kernel / 2).stride(stride).no_bias();
    Sequential::new().add(conv).add(BatchNorm::new())
}
