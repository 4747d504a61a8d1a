"""Metrics over a whole data set, by scikit-learn and torchmetrics (pip install scikit-learn torchmetrics).

The outputs `x` are logits. Nothing here has gradients.
"""

import numpy
import torch

from .case import Case, below, computes, given, normal

EVERYTHING = ("x", "target", "weights")


def reference(op):
    """Registers a function of numpy arrays, which returns a number or an array, as the rule of an op."""

    def register(function):
        def rule(x, target, weights=None, **settings):
            arrays = (x.numpy(), target.numpy(), None if weights is None else weights.numpy())
            return torch.tensor(numpy.asarray(function(*arrays, **settings)), dtype=torch.float64)

        def takes_all(tensors, attrs):
            return {"y": rule(**{k: v.detach() for k, v in tensors.items()}, **attrs)}

        computes(op, constants=EVERYTHING, takes_all=True)(takes_all)
        return function

    return register


def sigmoid(x):
    return 1 / (1 + numpy.exp(-x))


def softmax(x):
    powers = numpy.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def labels(x, target, weights, classes, threshold, ignored, multilabel):
    """Returns true labels, predicted labels and weights of the labels that count, as lists."""
    if classes is None or multilabel:
        true = target.reshape(x.shape)
        predicted = (sigmoid(x) > threshold).astype(int)
    else:
        true, predicted = target, x.argmax(-1)
    if multilabel:
        return true, predicted, weights
    each = numpy.ones(len(x)) if weights is None else weights
    each = numpy.broadcast_to(each.reshape(-1, *[1] * (true.ndim - 1)), true.shape).ravel()
    true, predicted = true.ravel(), predicted.ravel()
    counts = numpy.ones(len(true), bool) if ignored is None else true != ignored
    return true[counts].astype(int), predicted[counts], each[counts]


def counted(function, **more):
    """Returns the rule of a function of scikit-learn that averages over classes."""

    def rule(x, target, weights, *, average, classes=None, threshold=0.5, ignore_index=None, multilabel=False, **settings):
        import sklearn.metrics

        true, predicted, weights = labels(x, target, weights, classes, threshold, ignore_index, multilabel)
        score = getattr(sklearn.metrics, function)
        return score(true, predicted, average=average, sample_weight=weights, zero_division=0, **more, **settings)

    return rule


reference("precision")(counted("precision_score"))
reference("recall")(counted("recall_score"))
reference("fbeta")(counted("fbeta_score"))
reference("iou")(counted("jaccard_score"))


@reference("confusion_matrix")
def confusion_matrix(x, target, weights, *, classes=None, threshold=0.5, ignore_index=None):
    import sklearn.metrics

    true, predicted, weights = labels(x, target, weights, classes, threshold, ignore_index, False)
    names = range(classes or 2)
    return sklearn.metrics.confusion_matrix(true, predicted, labels=names, sample_weight=weights)


@reference("matthews")
def matthews(x, target, weights, *, classes=None, threshold=0.5, ignore_index=None):
    import sklearn.metrics

    true, predicted, weights = labels(x, target, weights, classes, threshold, ignore_index, False)
    return sklearn.metrics.matthews_corrcoef(true, predicted, sample_weight=weights)


@reference("auc")
def auc(x, target, weights, *, curve, classes=None):
    import sklearn.metrics

    score = {"roc": sklearn.metrics.roc_auc_score, "pr": sklearn.metrics.average_precision_score}[curve]
    if classes is None:
        each = numpy.ones(len(x)) if weights is None else weights
        each = numpy.broadcast_to(each.reshape(-1, *[1] * (x.ndim - 1)), x.shape).ravel()
        return score(target.ravel().astype(int), x.ravel(), sample_weight=each)
    scores = softmax(x)
    return numpy.mean([score(target == c, scores[:, c], sample_weight=weights) for c in range(classes)])


@reference("mean_squared_error")
def mean_squared_error(x, target, weights):
    import sklearn.metrics

    return sklearn.metrics.mean_squared_error(rows(target), rows(x), sample_weight=weights)


@reference("mean_absolute_error")
def mean_absolute_error(x, target, weights):
    import sklearn.metrics

    return sklearn.metrics.mean_absolute_error(rows(target), rows(x), sample_weight=weights)


@reference("root_mean_squared_error")
def root_mean_squared_error(x, target, weights):
    """Keras's: the root of the mean over everything."""
    return numpy.sqrt(mean_squared_error(x, target, weights))


@reference("r2")
def r2(x, target, weights):
    import sklearn.metrics

    return sklearn.metrics.r2_score(rows(target), rows(x), sample_weight=weights)


def rows(array):
    return array.reshape(len(array), -1)


@reference("accuracy")
def accuracy(x, target, weights):
    import sklearn.metrics

    labels = target if target.ndim < x.ndim else target.argmax(-1)
    return sklearn.metrics.accuracy_score(labels, x.argmax(-1), sample_weight=weights)


@reference("binary_accuracy")
def binary_accuracy(x, target, weights):
    import sklearn.metrics

    right = [x.ravel() > 0, target.ravel() > 0.5]
    return sklearn.metrics.accuracy_score(*right, sample_weight=weights)


@reference("top_k")
def top_k(x, target, weights, *, k):
    """Of equal logits the first is the largest; scikit-learn takes the last one."""
    import sklearn.metrics

    classes = range(x.shape[-1])
    turned = x.shape[-1] - 1 - target
    return sklearn.metrics.top_k_accuracy_score(turned, x[:, ::-1], k=k, labels=classes, sample_weight=weights)


@reference("perplexity")
def perplexity(x, target, weights, *, ignore_index=None):
    from torchmetrics.functional.text import perplexity

    assert weights is None
    return perplexity(torch.tensor(x), torch.tensor(target), ignore_index=ignore_index)


@reference("cosine_similarity")
def cosine_similarity(x, target, weights):
    """torchmetrics' is the same, and NaN for a vector of zeros."""
    assert weights is None
    return torch.cosine_similarity(torch.tensor(x), torch.tensor(target)).mean()


def steps(*shape, scale=2.0):
    """Draws numbers that are multiples of a half, so that many are equal."""
    return lambda g: (numpy.round(scale * 2 * g.standard_normal(shape)) / 2).astype(numpy.float32)


def zeros_and_ones(*shape, share=0.4):
    return lambda g: (g.random(shape) < share).astype(numpy.float32)


def some_ignored(high, *shape):
    """Draws labels, of which about a quarter are -1."""
    return lambda g: numpy.where(g.random(shape) < 0.25, -1, g.integers(0, high, shape)).astype(numpy.int32)


def weights(count):
    return lambda g: (g.integers(0, 9, count) / 4).astype(numpy.float32)


COUNTED = [("precision", {}), ("recall", {}), ("fbeta", {"beta": 1.0}), ("fbeta", {"beta": 2.0}), ("iou", {})]
# Of six classes, 4 is predicted and never true, and 5 is neither.
ABSENT = {"x": lambda g: normal(37, 6)(g) - numpy.array([0, 0, 0, 0, 0, 90], numpy.float32), "target": below(4, 37)}


def counted_cases():
    for op, settings in COUNTED:
        name = op if settings.get("beta", 2.0) == 2.0 else "f1"
        for average in ("macro", "micro", "weighted"):
            attrs = settings | {"average": average}
            classes = attrs | {"classes": 6}
            yield Case(f"{name}/{average}", op, ABSENT, classes)
            yield Case(
                f"{name}/{average}/multilabel",
                op,
                {"x": normal(23, 4), "target": zeros_and_ones(23, 4)},
                attrs | {"classes": 4, "multilabel": True},
            )
        macro = settings | {"average": "macro", "classes": 5}
        yield Case(
            f"{name}/ignored", op, {"x": normal(9, 4, 5), "target": some_ignored(5, 9, 4)}, macro | {"ignore_index": -1}
        )
        yield Case(
            f"{name}/sample_weights", op, {"x": normal(31, 5), "target": below(5, 31), "weights": weights(31)}, macro
        )
        for threshold in (0.5, 0.3, 0.9):
            yield Case(
                f"{name}/binary/{threshold}",
                op,
                {"x": normal(41, 1, scale=2), "target": below(2, 41)},
                settings | {"average": "binary", "threshold": threshold},
            )
        yield Case(
            f"{name}/binary/none_predicted",
            op,
            {"x": normal(7, shift=-30), "target": below(2, 7)},
            settings | {"average": "binary"},
        )


def labelled_cases():
    for op in ("confusion_matrix", "matthews"):
        yield Case(f"{op}/absent", op, ABSENT, {"classes": 6})
        yield Case(
            f"{op}/ignored",
            op,
            {"x": normal(9, 4, 5), "target": some_ignored(5, 9, 4)},
            {"classes": 5, "ignore_index": -1},
        )
        weighted = {"x": normal(31, 3), "target": below(3, 31), "weights": weights(31)}
        yield Case(f"{op}/sample_weights", op, weighted, {"classes": 3})
        yield Case(
            f"{op}/binary", op, {"x": normal(41, scale=2), "target": zeros_and_ones(41)}, {"threshold": 0.7}
        )
        one = {"x": normal(11, 3), "target": given([1] * 11, numpy.int32)}
        yield Case(f"{op}/one_class", op, one, {"classes": 3})


def auc_cases():
    for curve in ("roc", "pr"):
        attrs = {"curve": curve}
        yield Case(f"auc/{curve}", "auc", {"x": normal(53), "target": zeros_and_ones(53)}, attrs)
        yield Case(f"auc/{curve}/ties", "auc", {"x": steps(97), "target": below(2, 97)}, attrs)
        yield Case(
            f"auc/{curve}/all_equal", "auc", {"x": given([0.5] * 9), "target": given([0, 1] * 4 + [1])}, attrs
        )
        weighted = {"x": steps(41, 1), "target": zeros_and_ones(41, 1), "weights": weights(41)}
        yield Case(f"auc/{curve}/sample_weights", "auc", weighted, attrs)
        yield Case(f"auc/{curve}/pooled", "auc", {"x": steps(17, 3), "target": zeros_and_ones(17, 3)}, attrs)
        many = {"x": normal(43, 4, scale=2), "target": below(4, 43)}
        yield Case(f"auc/{curve}/one_vs_rest", "auc", many, attrs | {"classes": 4})


def regression_cases():
    for op in ("mean_squared_error", "mean_absolute_error", "root_mean_squared_error", "r2"):
        yield Case(op, op, {"x": normal(13, 3), "target": normal(13, 3)})
        yield Case(f"{op}/one", op, {"x": normal(13, 1), "target": normal(13)})
        weighted = {"x": normal(13, 2), "target": normal(13, 2), "weights": weights(13)}
        yield Case(f"{op}/sample_weights", op, weighted)
    # Sums of squares that differ in their last digits only.
    far = {"x": normal(50, scale=0.01, shift=1000), "target": normal(50, scale=0.01, shift=1000)}
    yield Case("r2/far_from_zero", "r2", far)
    same = {"x": normal(6, 2), "target": given([[1, 2]] * 6)}
    yield Case("r2/all_targets_equal", "r2", same)


def accuracy_cases():
    yield Case("accuracy", "accuracy", {"x": normal(31, 5), "target": below(5, 31)})
    weighted = {"x": normal(31, 5), "target": below(5, 31), "weights": weights(31)}
    yield Case("accuracy/sample_weights", "accuracy", weighted)
    yield Case("accuracy/probabilities", "accuracy", {"x": normal(17, 4), "target": normal(17, 4)})
    yield Case("binary_accuracy", "binary_accuracy", {"x": normal(23, 1), "target": zeros_and_ones(23)})
    weighted = {"x": normal(23, 1), "target": below(2, 23), "weights": weights(23)}
    yield Case("binary_accuracy/sample_weights", "binary_accuracy", weighted)


def other_cases():
    for k in (1, 2, 5):
        yield Case(f"top_k/{k}", "top_k", {"x": normal(29, 8), "target": below(8, 29)}, {"k": k})
    yield Case("top_k/ties", "top_k", {"x": steps(61, 6, scale=0.5), "target": below(6, 61)}, {"k": 3})
    weighted = {"x": normal(19, 7), "target": below(7, 19), "weights": weights(19)}
    yield Case("top_k/sample_weights", "top_k", weighted, {"k": 2})
    yield Case("perplexity", "perplexity", {"x": normal(6, 5, 9), "target": below(9, 6, 5)})
    ignored = {"x": normal(6, 5, 9), "target": some_ignored(9, 6, 5)}
    yield Case("perplexity/ignored", "perplexity", ignored, {"ignore_index": -1})
    yield Case("cosine_similarity", "cosine_similarity", {"x": normal(11, 6), "target": normal(11, 6)})
    zero = {"x": given([[0, 0], [1, 2], [-3, 4]]), "target": normal(3, 2)}
    yield Case("cosine_similarity/zero", "cosine_similarity", zero)


CASES = [
    *regression_cases(),
    *counted_cases(),
    *labelled_cases(),
    *auc_cases(),
    *accuracy_cases(),
    *other_cases(),
]
