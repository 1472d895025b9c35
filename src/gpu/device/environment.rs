//! Variables of the environment.

/// The value of a variable; `None` where it is not set, or empty.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
