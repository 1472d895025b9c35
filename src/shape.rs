//! The dimensions of a tensor.

use std::fmt;

/// Up to four dimensions, outermost first; tensors are row-major and contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; Self::MAX_RANK],
    rank: usize,
}

impl Shape {
    /// The most dimensions a shape can have.
    pub const MAX_RANK: usize = 4;

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// How many dimensions.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many elements; `None` where the product overflows.
    pub fn checked_len(&self) -> Option<usize> {
        self.dims().iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))
    }

    /// At most [`Shape::MAX_RANK`] dimensions, such as are left of a shape's.
    pub(crate) fn of(from: &[usize]) -> Self {
        let mut dims = [0; Self::MAX_RANK];
        dims.iter_mut().zip(from).for_each(|(dim, from)| *dim = *from);
        Self { dims, rank: from.len().min(Self::MAX_RANK) }
    }

    /// Returns the shape with another last dimension; a scalar becomes a vector.
    pub(crate) fn with_last(mut self, columns: usize) -> Self {
        self.rank = self.rank.max(1);
        self.dims[self.rank - 1] = columns;
        self
    }

    /// Returns the shape with other last two dimensions, which it must have.
    pub(crate) fn with_matrix(mut self, rows: usize, columns: usize) -> Self {
        (self.dims[self.rank - 2], self.dims[self.rank - 1]) = (rows, columns);
        self
    }

    /// Returns the shape without its last dimension.
    pub(crate) fn without_last(mut self) -> Self {
        self.rank -= 1;
        self.dims[self.rank] = 0;
        self
    }

    /// As (rows, columns): all but the last dimension, and the last. A scalar is 1 × 1.
    pub fn as_matrix(&self) -> (usize, usize) {
        match self.dims().split_last() {
            Some((&columns, rows)) => (rows.iter().product(), columns),
            None => (1, 1),
        }
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(from: [usize; N]) -> Self {
        const { assert!(N <= Self::MAX_RANK) };
        let mut dims = [0; Self::MAX_RANK];
        dims[..N].copy_from_slice(&from);
        Self { dims, rank: N }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn lengths() {
        assert_eq!(Shape::from([]).checked_len(), Some(1));
        assert_eq!(Shape::from([3, 0, 7]).checked_len(), Some(0));
        assert_eq!(Shape::from([usize::MAX, 2]).checked_len(), None);
        assert_eq!(Shape::from([2, 3, 5]).as_matrix(), (6, 5));
        assert_eq!(Shape::from([5]).as_matrix(), (1, 5));
        assert_eq!(Shape::from([2, 3]).to_string(), "[2, 3]");
        assert_eq!(Shape::from([2, 3, 5]).with_last(7), Shape::from([2, 3, 7]));
        assert_eq!(Shape::from([]).with_last(7), Shape::from([7]));
        assert_eq!(Shape::from([2, 3, 5]).with_matrix(7, 1), Shape::from([2, 7, 1]));
        assert_eq!(Shape::from([2, 3, 5]).without_last(), Shape::from([2, 3]));
    }

    #[test]
    fn shapes_of_slices_have_up_to_four_dimensions() {
        assert_eq!(Shape::try_from(&[2, 3][..]).unwrap(), Shape::from([2, 3]));
        assert_eq!(Shape::try_from(&[][..]).unwrap(), Shape::from([]));
        let error = Shape::try_from(&[1; 5][..]).unwrap_err().to_string();
        assert_eq!(error, "shape: 5 dimensions; a tensor has up to 4");
    }
}
