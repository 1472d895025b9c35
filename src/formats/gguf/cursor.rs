//! Reading a file from its beginning on.

/// Reads values in sequence; errors name the byte offset.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, length: u64, what: &str) -> Result<&'a [u8], String> {
        let rest = &self.bytes[self.at.min(self.bytes.len())..];
        let taken = usize::try_from(length).ok().and_then(|length| rest.get(..length));
        let taken = taken.ok_or_else(|| {
            format!("{what} at byte {} claims {length} bytes; {} are left", self.at, rest.len())
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(super) fn string(&mut self, what: &str) -> Result<&'a str, String> {
        let at = self.at;
        let length = self.u64(what)?;
        std::str::from_utf8(self.take(length, what)?)
            .map_err(|_| format!("{what} at byte {at} is not UTF-8"))
    }

    /// A count of things that take at least `least` bytes each; refused if the rest of the file
    /// cannot hold them.
    pub(super) fn count(&mut self, least: u64, what: &str) -> Result<u64, String> {
        let at = self.at;
        let count = self.u64(what)?;
        let rest = (self.bytes.len() - self.at) as u64;
        if count > rest / least {
            return Err(format!(
                "byte {at} claims {count} {what}; the {rest} bytes that follow cannot hold them"
            ));
        }
        Ok(count)
    }
}
