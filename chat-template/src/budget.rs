//! What a template may use: bytes of values, steps, and length of the output.

use std::{cell::Cell, rc::Rc};

/// What a template may still use.
pub struct Budget {
    /// Bytes of values that are alive.
    bytes: Cell<usize>,
    max_bytes: Cell<usize>,
    /// Steps that are left.
    steps: Cell<u64>,
    /// Bytes that the template may write.
    max_output: usize,
    /// Length of the output at which the template was stopped.
    too_long: Cell<Option<usize>>,
}

impl Budget {
    /// Creates a budget that limits only the output, until [`Budget::limit`].
    pub fn new(max_output: Option<usize>) -> Rc<Self> {
        Rc::new(Self {
            bytes: Cell::new(0),
            max_bytes: Cell::new(usize::MAX),
            steps: Cell::new(u64::MAX),
            max_output: max_output.unwrap_or(usize::MAX),
            too_long: Cell::new(None),
        })
    }

    /// Limits the bytes of all values, with those that are alive, and the steps from here on.
    pub fn limit(&self, max_bytes: usize, steps: u64) {
        self.max_bytes.set(max_bytes);
        self.steps.set(steps);
    }

    /// Length of the output at which the template was stopped.
    pub fn too_long(&self) -> Option<usize> {
        self.too_long.get()
    }

    /// Takes steps: one for everything that is evaluated, and one for every 16 bytes that are read
    /// or written.
    pub fn step(&self, steps: usize) -> Result<(), String> {
        match self.steps.get().checked_sub(steps as u64) {
            Some(left) => {
                self.steps.set(left);
                Ok(())
            }
            None => Err("the template takes too many steps".into()),
        }
    }

    /// Checks that `bytes` more may be allocated, before they are.
    pub fn check(&self, bytes: usize) -> Result<(), String> {
        self.step(bytes / 16)?;
        self.room(bytes)
    }

    fn room(&self, bytes: usize) -> Result<(), String> {
        let max = self.max_bytes.get();
        if self.bytes.get().saturating_add(bytes) > max {
            return Err(format!("the template's values take more than {} MiB", max >> 20));
        }
        Ok(())
    }

    pub fn take(&self, bytes: usize) -> Result<(), String> {
        self.step(bytes / 16)?;
        self.grow(bytes)
    }

    /// [`Budget::take`] for what has taken its steps.
    fn grow(&self, bytes: usize) -> Result<(), String> {
        self.room(bytes)?;
        self.bytes.set(self.bytes.get() + bytes);
        Ok(())
    }

    pub fn give(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }
}

/// Text that is being written, and counts as it grows.
pub struct Output {
    text: String,
    budget: Rc<Budget>,
    counted: usize,
    most: usize,
}

impl Output {
    pub fn new(budget: &Rc<Budget>) -> Self {
        Self::within(budget, usize::MAX)
    }

    /// What the whole template writes, which has a length of its own.
    pub fn of_template(budget: &Rc<Budget>) -> Self {
        Self::within(budget, budget.max_output)
    }

    fn within(budget: &Rc<Budget>, most: usize) -> Self {
        Self { text: String::new(), budget: budget.clone(), counted: 0, most }
    }

    pub fn push(&mut self, text: &str) -> Result<(), String> {
        let bytes = self.text.len() + text.len();
        if bytes > self.most {
            self.budget.too_long.set(Some(bytes));
            return Err(format!("the template writes more than {} bytes", self.most));
        }
        // A string that grows doubles, and for a moment there are both.
        let needed = 3 * bytes;
        self.budget.step(text.len() / 16)?;
        if needed > self.counted {
            let more = 2 * needed - self.counted;
            self.budget.grow(more)?;
            self.counted += more;
        }
        self.text.push_str(text);
        Ok(())
    }

    pub fn blanks(&mut self, count: usize) -> Result<(), String> {
        self.push(&" ".repeat(count))
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    pub fn into_text(mut self) -> String {
        std::mem::take(&mut self.text)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.budget.give(self.counted);
    }
}
