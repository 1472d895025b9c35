//! What followed the end of a text when it occurred before: prompt lookup (Saxena 2023, "Prompt
//! Lookup Decoding").

use std::{collections::HashMap, hash::BuildHasher, ops::RangeInclusive};

/// Where runs of tokens of a text occurred last. A token is looked at when it is new, and never
/// again.
pub(crate) struct NgramIndex {
    lengths: RangeInclusive<usize>,
    /// By a run's hash: the place of the token that followed it.
    next: HashMap<u64, usize>,
    /// How many tokens of the text are in it.
    known: usize,
}

impl NgramIndex {
    /// For runs of these lengths.
    pub fn new(lengths: RangeInclusive<usize>) -> Self {
        Self { lengths, next: HashMap::new(), known: 0 }
    }

    /// The place of the token that followed the text's end, the most tokens of it that occurred
    /// before, the last time. The text is that of the last call, and more.
    pub fn find(&mut self, text: &[u32]) -> Option<usize> {
        for place in self.known..text.len() {
            for run in self.lengths.clone().filter_map(|length| run(text, place, length)) {
                self.next.insert(self.next.hasher().hash_one(run), place);
            }
        }
        self.known = text.len();
        let end = |length| run(text, text.len(), length);
        self.lengths.clone().rev().filter_map(end).find_map(|ngram| {
            let place = *self.next.get(&self.next.hasher().hash_one(ngram))?;
            // Two runs may have one hash.
            (run(text, place, ngram.len()) == Some(ngram)).then_some(place)
        })
    }

    /// `count` tokens from a place of the text on; where it ends, what it ends with goes on.
    pub fn tokens(text: &[u32], place: usize, count: usize) -> Vec<u32> {
        let period = text.len() - place;
        (0..count).map(|i| text[place + i % period]).collect()
    }
}

/// The tokens before a place, this many.
fn run(text: &[u32], place: usize, length: usize) -> Option<&[u32]> {
    Some(&text[place.checked_sub(length)?..place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_suffix_is_found_where_last_seen() {
        let found = |lengths, text: &[u32]| NgramIndex::new(lengths).find(text);
        assert_eq!(found(1..=3, &[1, 2, 3, 4]), None);
        assert_eq!(found(1..=3, &[]), None);
        // 2 and 3 occurred together, and 3 alone later.
        assert_eq!(found(1..=3, &[1, 2, 3, 4, 3, 9, 2, 3]), Some(3));
        assert_eq!(found(1..=1, &[1, 2, 3, 4, 3, 9, 2, 3]), Some(5));
        assert_eq!(found(3..=3, &[1, 2, 3, 4, 3, 9, 2, 3]), None);
        // The last of several.
        assert_eq!(found(2..=2, &[5, 6, 1, 5, 6, 2, 5, 6]), Some(5));
        // Runs may overlap.
        assert_eq!(found(2..=2, &[7, 7, 7]), Some(2));
    }

    #[test]
    fn the_incremental_index_equals_a_full_search() {
        let text: Vec<u32> = (0..400u32).map(|i| i * i % 7 % 3 + i / 97).collect();
        let mut index = NgramIndex::new(2..=5);
        let mut found = 0;
        for length in (0..=text.len()).step_by(3) {
            let place = index.find(&text[..length]);
            // By going through all of it.
            let end = |n: usize, place: usize| {
                place >= n && length >= n && text[place - n..place] == text[length - n..length]
            };
            let ngram = (2..=5).rev().find_map(|n| (0..length).rev().find(|&place| end(n, place)));
            assert_eq!(place, ngram, "{length}");
            found += usize::from(place.is_some());
        }
        assert!(found > 50, "{found}");
    }

    #[test]
    fn what_repeats_goes_on() {
        assert_eq!(NgramIndex::tokens(&[1, 2, 3, 4], 1, 2), [2, 3]);
        assert_eq!(NgramIndex::tokens(&[1, 2, 3, 4], 2, 5), [3, 4, 3, 4, 3]);
        assert_eq!(NgramIndex::tokens(&[1], 0, 2), [1, 1]);
    }
}
