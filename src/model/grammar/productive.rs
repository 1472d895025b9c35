//! Grammars without a finite text, which llguidance accepts.

use llguidance::earley::CGrammar;
use std::collections::{HashMap, HashSet};

/// Returns whether there is a finite text: whether the start symbol has a rule of symbols that have
/// one. Conditions of parametric rules count as fulfilled. The work is linear in the grammar.
pub fn is_productive(grammar: &CGrammar) -> bool {
    let start = grammar.start();
    let (mut known, mut open) = (HashSet::from([start.as_index()]), vec![start]);
    // Each rule's symbol and number of parts without a text yet, and the rules of each part.
    let (mut rules, mut rules_of_part) = (Vec::new(), HashMap::<usize, Vec<usize>>::new());
    let mut found = Vec::new();
    while let Some(symbol) = open.pop() {
        let data = grammar.sym_data(symbol);
        if data.is_terminal || data.is_nullable || !data.cond_nullable.is_empty() {
            found.push(symbol.as_index());
        }
        for &rule in grammar.rules_of(symbol) {
            let (parts, ..) = grammar.rule_rhs(rule);
            for &part in parts {
                rules_of_part.entry(part.as_index()).or_default().push(rules.len());
                if known.insert(part.as_index()) {
                    open.push(part);
                }
            }
            rules.push((symbol.as_index(), parts.len()));
        }
    }
    let mut productive = HashSet::new();
    while let Some(symbol) = found.pop() {
        if !productive.insert(symbol) {
            continue;
        }
        for rule in rules_of_part.remove(&symbol).into_iter().flatten() {
            let (of, missing) = &mut rules[rule];
            *missing -= 1;
            if *missing == 0 {
                found.push(*of);
            }
        }
    }
    productive.contains(&start.as_index())
}
