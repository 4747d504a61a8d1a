//! Single rows that come one by one, for servers: they are put together into batches, within a bounded wait.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unisono_data::Sample;

use crate::Error;
use crate::error::caught;
use crate::predictor::rows::{Row, are_alike};
use crate::predictor::{Predictor, stack};

/// A predictor on a thread of its own. Made by [`Predictor::serve`].
pub struct Server {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<Predictor>>,
}

/// A handle to a [`Server`], for one thread of a program. Cloning it is cheap.
#[derive(Clone)]
pub struct Client(Sender<Request>);

/// What a client asks for.
enum Request {
    Row { sample: Sample, came: Instant, answer: Sender<Result<Row, Error>> },
    Stop,
}

/// A row that waits for its batch.
struct Waiting {
    sample: Sample,
    came: Instant,
    answer: Sender<Result<Row, Error>>,
}

impl Predictor {
    /// Serves single rows from any number of threads. A row waits for others, for at most `wait`. The batch
    /// is computed after that time, or as soon as it is full. If the model draws random numbers, a row draws
    /// by its place among all rows that were served.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use unisono::Predictor;
    /// use unisono::data::{Field, Sample};
    ///
    /// # fn main() -> Result<(), unisono::Error> {
    /// let server = Predictor::open("digits.safetensors")?.serve(Duration::from_millis(2))?;
    /// let client = server.client();
    /// let row = client.predict(Sample::new().with("x", Field::f32([64], [0.0; 64])))?;
    /// println!("{:?}, {}", row.values(), server.stop()?.report());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The model carries something from batch to batch; the thread cannot be started.
    pub fn serve(mut self, wait: Duration) -> Result<Server, Error> {
        self.check_rows()?;
        self.clock.by_row();
        let (requests, inbox) = channel();
        let named = std::thread::Builder::new().name("predictor".into());
        let thread = named.spawn(move || {
            run(&mut self, &inbox, wait);
            self
        });
        let thread = thread.map_err(|error| Error::setting("serve", format!("no thread: {error}")))?;
        Ok(Server { requests: Some(requests), thread: Some(thread) })
    }
}

impl Server {
    /// Returns a handle by which rows are predicted.
    pub fn client(&self) -> Client {
        match &self.requests {
            Some(requests) => Client(requests.clone()),
            // A server without requests was stopped, which takes it: nobody has it any more.
            None => Client(channel().0),
        }
    }

    /// Ends the thread after the rows that came so far, and returns the predictor. Clients get an error from
    /// then on.
    ///
    /// # Errors
    /// The thread has panicked.
    pub fn stop(mut self) -> Result<Predictor, Error> {
        self.close();
        let thread = self.thread.take().ok_or_else(gone)?;
        let mut predictor = thread.join().map_err(|_| gone())?;
        predictor.clock.by_batch();
        Ok(predictor)
    }

    fn close(&mut self) {
        if let Some(requests) = self.requests.take() {
            // Nobody listens if the thread has ended, which is what is wanted.
            let _ = requests.send(Request::Stop);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Client {
    /// Predicts a sample, and waits for the answer.
    ///
    /// # Errors
    /// The sample does not fit the model; an error of the replicas; the server was stopped.
    pub fn predict(&self, sample: Sample) -> Result<Row, Error> {
        let (answer, answered) = channel();
        let request = Request::Row { sample, came: Instant::now(), answer };
        self.0.send(request).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())?
    }
}

/// Answers with an error where something panics.
fn guarded<T>(answer: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let panicked = |message| Err(Error::Panic { what: "a prediction".into(), message });
    caught(answer).unwrap_or_else(panicked)
}

/// Returns the error of a batch for each of its rows.
fn failed<T>(error: Error, rows: usize) -> Vec<Result<T, Error>> {
    let error = Arc::new(error);
    (0..rows).map(|_| Err(Error::Served(Arc::clone(&error)))).collect()
}

fn gone() -> Error {
    Error::setting("serve", "the server has ended")
}

/// Answers requests until the last client and the server are gone, or it is stopped.
fn run(predictor: &mut Predictor, inbox: &Receiver<Request>, wait: Duration) {
    let mut held: Option<Waiting> = None;
    let mut served = 0;
    loop {
        let first = match held.take() {
            Some(first) => first,
            None => match inbox.recv() {
                Ok(Request::Row { sample, came, answer }) => Waiting { sample, came, answer },
                Ok(Request::Stop) | Err(_) => return,
            },
        };
        // A wait beyond what the clock counts has no end.
        let until = first.came.checked_add(wait);
        let mut waiting = vec![first];
        let mut stops = false;
        while waiting.len() < predictor.batch && held.is_none() && !stops {
            // What has come by now joins, even if the wait is over.
            let came = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(left) => inbox.recv_timeout(left),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match came {
                Ok(Request::Row { sample, came, answer }) => {
                    let next = Waiting { sample, came, answer };
                    if are_alike(&waiting[0].sample, &next.sample) {
                        waiting.push(next);
                    } else {
                        held = Some(next);
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Ok(Request::Stop) | Err(RecvTimeoutError::Disconnected) => stops = true,
            }
        }
        answer(predictor, waiting, &mut served);
        if stops {
            held.take().into_iter().for_each(|last| answer(predictor, vec![last], &mut served));
            return;
        }
    }
}

/// Predicts rows together and answers each. A row that does not fit the model gets an error of its own, and
/// so does one for which something panics: other clients are served on. `served` counts the rows.
fn answer(predictor: &mut Predictor, waiting: Vec<Waiting>, served: &mut u64) {
    let fields = predictor.fields();
    let mut fitting = Vec::new();
    for Waiting { sample, came, answer } in waiting {
        let alone = stack(&fields, std::slice::from_ref(&sample));
        let checked = alone.and_then(|batch| {
            guarded(|| {
                let at = predictor.program_for(&batch)?;
                predictor.programs[at].0.check(&batch)
            })
        });
        match checked {
            Ok(()) => fitting.push((sample, came, answer)),
            // A client that no longer waits needs no answer.
            Err(error) => drop(answer.send(Err(error))),
        }
    }
    if fitting.is_empty() {
        return;
    }
    let samples: Vec<Sample> = fitting.iter_mut().map(|(sample, ..)| std::mem::take(sample)).collect();
    let predicted = guarded(|| predictor.predict_samples(&samples, *served));
    *served += samples.len() as u64;
    let rows = match predicted {
        Ok(rows) => rows.into_iter().map(Ok).collect(),
        Err(error) => failed(error, fitting.len()),
    };
    for ((_, came, answer), row) in fitting.into_iter().zip(rows) {
        predictor.clock.keep(came.elapsed());
        drop(answer.send(row));
    }
}
