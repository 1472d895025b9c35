//! Files as the crate and its tools read, write and name them: reads are bounded and never wait for
//! a FIFO, writes are atomic, and names are printed without control characters.

pub(crate) mod display;
pub(crate) mod read;
pub(crate) mod write;

pub(crate) use display::display;
pub(crate) use read::read;
pub(crate) use write::write;
