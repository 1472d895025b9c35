//! Model files, sound, damaged and hostile: the reader gives the right matrix or an error, and
//! never panics.

mod configurations;
mod experts;
mod families;
mod file;
mod gguf;
mod groups;
mod prepacked;
mod prepacked_errors;
mod safetensors;
mod stand_ins;
mod written;
mod written_mlx;

#[global_allocator]
static ALLOCATOR: support::memory::Bounded = support::memory::Bounded;
