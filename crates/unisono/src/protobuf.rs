//! Protocol Buffers, as far as TensorBoard's event files and ONNX need them: fields are written one after the
//! other.

/// A message that is written field by field.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Creates a message without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an integer, or the number of an enum's value.
    pub fn integer(mut self, field: u32, value: i64) -> Self {
        self.key(field, 0);
        // Negative numbers take ten bytes, as the format wants it.
        self.varint(value as u64);
        self
    }

    /// Adds a number of 64 bits.
    pub fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds a number of 32 bits.
    pub fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds bytes or a text.
    pub fn bytes(mut self, field: u32, value: impl AsRef<[u8]>) -> Self {
        self.key(field, 2);
        self.varint(value.as_ref().len() as u64);
        self.0.extend(value.as_ref());
        self
    }

    /// Adds a list of numbers of 64 bits.
    pub fn doubles(self, field: u32, values: &[f64]) -> Self {
        let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(field, packed)
    }

    /// Adds a message.
    pub fn message(self, field: u32, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn key(&mut self, field: u32, wire_type: u64) {
        self.varint((u64::from(field) << 3) | wire_type);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the format's documentation.
    #[test]
    fn fields_are_written_as_the_format_says() {
        assert_eq!(Message::new().integer(1, 150).as_bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::new().bytes(2, "testing").as_bytes(), b"\x12\x07testing");
        let inner = Message::new().integer(1, 150);
        assert_eq!(Message::new().message(3, &inner).as_bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(Message::new().integer(1, -1).as_bytes().len(), 11);
        assert_eq!(Message::new().float(2, 1.0).as_bytes(), [0x15, 0, 0, 0x80, 0x3f]);
    }
}
