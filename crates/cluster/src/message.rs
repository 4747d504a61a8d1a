//! The messages between ranks: a head of 32 bytes and a body.

/// The bytes of a head. It keeps bodies of f32 aligned.
const HEAD: usize = 32;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A record of a gather.
    Gather = 1,
    /// A record of the gather that ends a part of the run, whatever the other ranks are doing.
    Conclude = 2,
    /// Blocks of a bucket, for the rank that adds them.
    Blocks = 3,
    /// The sums of a slice of a bucket.
    Sums = 4,
    /// What a rank knows after a loss.
    Report = 5,
    /// The records of a gather that some ranks have completed before a loss.
    Adopt = 6,
    /// The ranks for which the sender waits, after its deadline.
    Waiting = 7,
    /// The sender ends its part of the run.
    Bye = 8,
}

/// A message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub kind: Kind,
    /// Which ranks are lost, as a hash.
    pub view: u64,
    /// The number of gathers that the sender had completed.
    pub sequence: u64,
    /// The bucket.
    pub bucket: u64,
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.body.len());
        for word in [self.kind as u64, self.view, self.sequence, self.bucket] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend_from_slice(self.body);
        bytes
    }

    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, body) = bytes.split_at_checked(HEAD)?;
        let word = |at: usize| Some(u64::from_le_bytes(head.get(8 * at..8 * at + 8)?.try_into().ok()?));
        let kind = match word(0)? {
            1 => Kind::Gather,
            2 => Kind::Conclude,
            3 => Kind::Blocks,
            4 => Kind::Sums,
            5 => Kind::Report,
            6 => Kind::Adopt,
            7 => Kind::Waiting,
            8 => Kind::Bye,
            _ => return None,
        };
        Some(Self { kind, view: word(1)?, sequence: word(2)?, bucket: word(3)?, body })
    }
}
