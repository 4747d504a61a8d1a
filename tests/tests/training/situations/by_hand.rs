//! Models that are trained by hand, in f64.

/// A sample of [`Linear`].
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub x: [f32; 2],
    pub y: f32,
    pub weight: f32,
}

/// A linear model with one output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    pub weight: [f64; 2],
    pub bias: f64,
}

/// The gradient of [`Linear`]: that of its weight and that of its bias.
pub type Gradient = [f64; 3];

impl Linear {
    /// Returns the model that tests start with.
    pub fn start() -> Self {
        Self { weight: [0.5, -0.25], bias: 0.125 }
    }

    pub fn predict(&self, row: &Row) -> f64 {
        let [a, b] = row.x.map(f64::from);
        self.weight[0] * a + self.weight[1] * b + self.bias
    }

    fn error(&self, row: &Row) -> f64 {
        self.predict(row) - f64::from(row.y)
    }

    /// Returns the weighted mean of the squared errors.
    pub fn loss(&self, rows: &[Row]) -> f64 {
        mean(rows.iter().map(|row| (self.error(row).powi(2), f64::from(row.weight))))
    }

    /// Returns the gradient of [`Linear::loss`].
    pub fn gradient(&self, rows: &[Row]) -> Gradient {
        [0, 1, 2].map(|at| {
            let by = |row: &Row| row.x.get(at).map_or(1.0, |&x| f64::from(x));
            mean(rows.iter().map(|row| (2.0 * self.error(row) * by(row), f64::from(row.weight))))
        })
    }

    /// Moves against a gradient.
    pub fn descend(&mut self, gradient: Gradient, rate: f64) {
        self.weight[0] -= rate * gradient[0];
        self.weight[1] -= rate * gradient[1];
        self.bias -= rate * gradient[2];
    }

    /// Trains in batches in the order of the rows. Returns the mean loss over samples, each as it was when
    /// its batch came.
    pub fn train(&mut self, rows: &[Row], batch: usize, rate: f64) -> f64 {
        let mut losses = Vec::new();
        for batch in rows.chunks(batch) {
            losses.extend(batch.iter().map(|row| (self.error(row).powi(2), f64::from(row.weight))));
            if batch.iter().any(|row| row.weight != 0.0) {
                self.descend(self.gradient(batch), rate);
            }
        }
        mean(losses.into_iter())
    }
}

/// Returns the weighted mean of values.
pub fn mean(all: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, weights) =
        all.fold((0.0, 0.0), |(sum, weights), (value, weight)| (sum + value * weight, weights + weight));
    sum / weights
}

/// The number of classes of [`Softmax`].
pub const CLASSES: usize = 3;

/// A linear model with logits of classes: three weights and a bias for each.
#[derive(Clone, Debug)]
pub struct Softmax {
    pub weight: [[f64; 2]; CLASSES],
    pub bias: [f64; CLASSES],
}

/// A label with the features that it belongs to, and its weight.
#[derive(Clone, Copy, Debug)]
pub struct Labelled {
    pub x: [f32; 2],
    pub label: usize,
    pub weight: f64,
}

impl Softmax {
    /// Returns the model that tests start with.
    pub fn start() -> Self {
        Self { weight: [[0.5, -0.25], [0.125, 0.25], [-0.5, 0.75]], bias: [0.25, 0.0, -0.125] }
    }

    /// Returns the weights as the library has them, row after row.
    pub fn values(&self) -> (Vec<f32>, Vec<f32>) {
        let weight = self.weight.iter().flatten().map(|&x| x as f32).collect();
        (weight, self.bias.map(|x| x as f32).to_vec())
    }

    fn probabilities(&self, x: [f32; 2]) -> [f64; CLASSES] {
        let logit = |class: usize| {
            let [a, b] = self.weight[class];
            (a * f64::from(x[0]) + b * f64::from(x[1]) + self.bias[class]).exp()
        };
        let all = [0, 1, 2].map(logit);
        all.map(|own| own / all.iter().sum::<f64>())
    }

    /// Moves against the gradient of the weighted mean of the cross-entropies.
    pub fn descend(&mut self, labels: &[Labelled], rate: f64) {
        let before = self.clone();
        let of = |class: usize, by: &dyn Fn(&Labelled) -> f64| {
            mean(labels.iter().map(|own| {
                let p = before.probabilities(own.x)[class];
                let error = p - f64::from(u8::from(own.label == class));
                (error * by(own), own.weight)
            }))
        };
        for class in 0..CLASSES {
            for at in 0..2 {
                self.weight[class][at] -= rate * of(class, &|own| f64::from(own.x[at]));
            }
            self.bias[class] -= rate * of(class, &|_| 1.0);
        }
    }
}
