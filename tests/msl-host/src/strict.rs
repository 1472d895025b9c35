use crate::Error;
pub fn check(_: &str) -> Result<(), Error> { Ok(()) }
