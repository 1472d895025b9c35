//! What was measured on a device, in a file of the folder that it was opened with. A file that is
//! not what was written there is not used, which is a line in the log.

use crate::{
    error::{Error, Result},
    files::display,
    gpu::{
        capabilities::Capabilities,
        compile::cache::{Kind, hash, identity, read, write},
        context::Context,
    },
    limits::cache::MOST_TUNING,
    tuning::Tuning,
};
use std::path::{Path, PathBuf};

const TUNING: &Kind = b"bitnet-wgpu tuning 1\n";

impl Context {
    /// Writes what was measured on this device to the folder of
    /// [`ContextOptions::kernel_cache`](crate::ContextOptions::kernel_cache), from which the next context has it
    /// that is opened on the same adapter, with the same driver and tensor cores, by this version
    /// of the crate: its `Capabilities::tuning`. Gives the file,
    /// which takes the place of one that was there. This context is not changed:
    /// `Context::restricted` does that.
    ///
    /// Another driver or version has another file: what was measured for it before stays in the
    /// folder, unused. A file that is damaged, that was renamed, or that sets what is no choice is
    /// ignored when a context is opened, with a warning in the log.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the context was opened without a folder; [`Error::Io`].
    pub fn save_tuning(&self, tuning: &Tuning) -> Result<PathBuf> {
        let none = || Error::Invalid {
            op: "save_tuning",
            what: "the context was opened without a cache folder".into(),
        };
        let folder = self.cache_folder().ok_or_else(none)?;
        let (path, key) = self.tuning_file(folder);
        write(&path, TUNING, key, tuning.to_string().as_bytes())?;
        Ok(path)
    }

    /// This device, with kernels chosen by `tuning` where it sets a threshold.
    pub fn with_tuning(&self, tuning: Tuning) -> Self {
        self.with_capabilities(Capabilities { tuning, ..self.capabilities().clone() })
    }

    /// Thresholds that were set, by [`Context::with_tuning`] or by a file of the cache folder.
    pub fn tuning(&self) -> &Tuning {
        &self.capabilities().tuning
    }

    /// Returns the context with the tuning that its folder has for it.
    pub(crate) fn tuned(self) -> Self {
        let Some(folder) = self.cache_folder() else { return self };
        let (path, key) = self.tuning_file(folder);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|error| error.to_string());
        let saved = read(&path, TUNING, key, MOST_TUNING)
            .and_then(|saved| saved.map(|bytes| Tuning::parse(&text(bytes)?)).transpose());
        match saved {
            Ok(None) => self,
            Ok(Some(tuning)) => {
                log::info!(
                    "{}: kernel tuning loaded: {}",
                    display(&path),
                    tuning.to_string().trim_end().replace('\n', ", ")
                );
                self.with_tuning(tuning)
            }
            Err(why) => {
                log::warn!("{}: {why}: default kernel tuning is used", display(&path));
                self
            }
        }
    }

    /// A device's file in a folder, and the hash of what it rests on.
    fn tuning_file(&self, folder: &Path) -> (PathBuf, u64) {
        let key = hash([self.measured_on().as_bytes(), Tuning::table().as_bytes()]);
        (folder.join(format!("{key:016x}.tuning")), key)
    }

    /// The folder that it was opened with.
    pub(crate) fn cache_folder(&self) -> Option<&Path> {
        self.opened().and_then(|options| options.kernel_cache.as_deref())
    }

    /// What measurements rest on: the device, this crate, and which kernels it runs.
    pub(crate) fn measured_on(&self) -> String {
        format!(
            "{}{:?} {:?}\n",
            identity(self.adapter_info()),
            self.language(),
            self.capabilities().tensor_cores
        )
    }
}
