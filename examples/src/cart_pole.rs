//! The game that `dqn` plays.

use unisono::data::{Draws, Environment, Turn};

/// A pole on a cart (Barto, Sutton and Anderson 1983), with the rules of Gymnasium's `CartPole-v1`, except
/// that episodes are shorter. The agent pushes the cart to the left (0) or to the right (1) for a fiftieth of
/// a second. Each push has a reward of 1, and the episode ends when the pole falls.
#[derive(Clone, Debug)]
pub struct CartPole {
    /// The cart's place and speed, the pole's angle and its speed.
    state: [f32; 4],
    pushes: u32,
}

impl CartPole {
    /// After this many pushes an episode is cut off.
    pub const MOST: u32 = 200;
}

impl Environment for CartPole {
    const ACTIONS: usize = 2;

    fn start(draws: &mut Draws) -> Self {
        Self { state: [0; 4].map(|_| draws.range(-0.05, 0.05)), pushes: 0 }
    }

    fn state(&self) -> &[f32] {
        &self.state
    }

    fn act(&mut self, action: usize) -> Turn {
        let [place, speed, angle, turn] = self.state;
        let (sin, cos) = (libm::sinf(angle), libm::cosf(angle));
        let force = if action == 1 { 10.0 } else { -10.0 };
        let push = (force + 0.05 * turn * turn * sin) / 1.1;
        let turning = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1));
        let pushed = push - 0.05 * turning * cos / 1.1;
        self.state =
            [place + 0.02 * speed, speed + 0.02 * pushed, angle + 0.02 * turn, turn + 0.02 * turning];
        self.pushes += 1;
        let stands = self.state[0].abs() < 2.4 && self.state[2].abs() < 0.2095;
        Turn { reward: 1.0, terminated: !stands, truncated: self.pushes == Self::MOST }
    }
}
