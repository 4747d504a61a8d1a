//! One adapter on which subjects are run.

use unisono_gpu::{Adapter, Device, Options};
use unisono_graph::plan::Transfer;
use unisono_graph::{Plan, Program, Slot, Target};
use unisono_testkit::{load_plan, plan_for, run_loaded, run_plan};

use super::{Plant, Subject, Values};

/// The most devices that a bench keeps open, since a device keeps the states that it was first given.
const DEVICES: usize = 3;

/// An open adapter.
pub struct Bench {
    adapter: Adapter,
    /// The open devices, with the sizes of the states that each has in elements. The last one was used last.
    devices: Vec<(Vec<usize>, Device)>,
    options: Options,
    /// What is wrong with the adapter on purpose.
    plant: Option<Plant>,
}

impl Bench {
    /// Opens an adapter.
    ///
    /// # Errors
    /// The adapter does not open.
    pub fn open(adapter: &Adapter, options: Options) -> Result<Self, String> {
        let mut bench = Self { adapter: adapter.clone(), devices: Vec::new(), options, plant: None };
        bench.forget()?;
        Ok(bench)
    }

    /// Closes all devices, which keep the kernels of all subjects that they ran, and opens a new one.
    ///
    /// # Errors
    /// The adapter does not open.
    pub fn forget(&mut self) -> Result<(), String> {
        let device =
            Device::open_with(&self.adapter, self.options.clone()).map_err(|error| error.to_string())?;
        self.devices = vec![(Vec::new(), device)];
        Ok(())
    }

    /// Spoils every kernel from now on.
    #[must_use]
    pub fn with(mut self, plant: Option<Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// Returns the adapter's label.
    pub fn label(&self) -> String {
        self.adapter.label()
    }

    /// Returns what plans for the adapter have to know.
    pub(super) fn target(&self) -> Target {
        self.devices[self.devices.len() - 1].1.target()
    }

    /// Runs a subject. Returns its outputs and its states after the step.
    ///
    /// # Errors
    /// The subject does not compile, or the adapter does not run it.
    pub fn run(&mut self, subject: &Subject) -> Result<Values, String> {
        self.run_for(subject, &self.target())
    }

    /// Runs a subject with the plan for a target.
    pub(super) fn run_for(&mut self, subject: &Subject, target: &Target) -> Result<Values, String> {
        let program = Program::compile(&subject.graph).map_err(|error| error.to_string())?;
        let plan = plan_for(target, &program, &subject.feed).map_err(|error| error.to_string())?;
        let name = |slot| match Slot::decode(slot) {
            Slot::Output(index) => program.outputs()[index].name.clone(),
            other => format!("{other:?}"),
        };
        let found = self.download(&program, plan, subject)?;
        let mut values: Values = found.into_iter().map(|(slot, words)| (name(slot), words)).collect();
        for (index, state) in program.states().iter().enumerate() {
            let device = self.device_for(&program)?;
            let bytes = device.read_state(index).map_err(|error| error.to_string())?;
            values.push((state.name.clone(), words(&bytes)));
        }
        Ok(values)
    }

    /// Runs a plan of a subject's program. Returns what it downloads by slot, in their order.
    pub(super) fn download(
        &mut self,
        program: &Program,
        mut plan: Plan,
        subject: &Subject,
    ) -> Result<Values<usize>, String> {
        if let Some(plant) = self.plant {
            plan.kernels.iter_mut().for_each(|kernel| kernel.wgsl = plant.spoil(&kernel.wgsl));
        }
        let label = self.label();
        let device = self.device_for(program)?;
        let mut found: Values<usize> = Vec::new();
        let mut keep = |transfer: &Transfer, bytes: &[u8]| {
            found.push((transfer.slot, words(bytes)));
        };
        run_plan(device, program, &plan, &subject.feed, &mut keep)
            .map_err(|error| format!("{}: {label}: {error}", subject.name))?;
        found.sort();
        Ok(found)
    }

    /// Makes a subject's plan ready. Returns a function that runs its step.
    pub(super) fn stepper<'a>(
        &'a mut self,
        subject: &'a Subject,
        plant: Option<Plant>,
    ) -> Result<impl FnMut() -> Result<(), String> + 'a, String> {
        let program = Program::compile(&subject.graph).map_err(|error| error.to_string())?;
        let mut plan =
            plan_for(&self.target(), &program, &subject.feed).map_err(|error| error.to_string())?;
        if let Some(plant) = plant {
            plan.kernels.iter_mut().for_each(|kernel| kernel.wgsl = plant.spoil(&kernel.wgsl));
        }
        let device = self.device_for(&program)?;
        let mut executable = load_plan(device, &program, &plan, &subject.feed)
            .map_err(|error| format!("{}: {error}", subject.name))?;
        let device = &*device;
        Ok(move || {
            run_loaded(device, &mut executable, &program, &subject.feed, &mut |_, _| {})
                .map_err(|error| error.to_string())
        })
    }

    /// Returns the device that has a program's states, and opens one where there is none.
    fn device_for(&mut self, program: &Program) -> Result<&mut Device, String> {
        let states: Vec<usize> = program.states().iter().map(|state| state.ty.count()).collect();
        let known = self.devices.iter().position(|(own, _)| *own == states);
        let entry = match known {
            Some(index) => self.devices.remove(index),
            None => {
                if self.devices.len() == DEVICES {
                    self.devices.remove(0);
                }
                let device = Device::open_with(&self.adapter, self.options.clone());
                (states, device.map_err(|error| error.to_string())?)
            }
        };
        let last = self.devices.len();
        self.devices.push(entry);
        Ok(&mut self.devices[last].1)
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}
