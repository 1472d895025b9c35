//! Fields that only tests and tools read.

/// Declares a struct whose second list of fields is public with the feature `internals` only.
macro_rules! internal_fields {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($fields:tt)* }
        internals { $($(#[$doc:meta])* $field:ident: $ty:ty,)+ }
    ) => {
        $(#[$meta])*
        #[cfg(feature = "internals")]
        pub struct $name { $($fields)* $($(#[$doc])* pub $field: $ty,)+ }

        $(#[$meta])*
        #[cfg(not(feature = "internals"))]
        pub struct $name { $($fields)* $($(#[$doc])* pub(crate) $field: $ty,)+ }
    };
}

pub(crate) use internal_fields;
