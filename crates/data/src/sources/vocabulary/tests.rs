use super::*;
use crate::Source;

const TEXTS: [&str; 4] = ["The cat sat.", "the cat, the hat", "A bat", "cat"];

#[test]
fn terms_come_by_frequency_and_then_by_the_alphabet() {
    let words = Vocabulary::words().learn(TEXTS).unwrap();
    assert_eq!(words.terms(), ["cat", "the", "a", "bat", "hat", "sat"]);
    assert_eq!((words.len(), words.id("cat"), words.id("The")), (8, Some(2), None));
    let backwards: Vec<&str> = TEXTS.into_iter().rev().collect();
    assert_eq!(Vocabulary::words().learn(backwards).unwrap(), words);
    assert_eq!(Vocabulary::words().most(4).learn(TEXTS).unwrap().terms(), ["cat", "the"]);
    assert_eq!(Vocabulary::words().least(3).learn(TEXTS).unwrap().terms(), ["cat", "the"]);
    let kept = Vocabulary::words().keep_case().keep_punctuation().learn(TEXTS).unwrap();
    assert_eq!(kept.terms(), ["cat", "the", "A", "The", "bat", "cat,", "hat", "sat."]);
    let characters = Vocabulary::characters().learn(["abba", "b c"]).unwrap();
    assert_eq!(characters.terms(), ["b", "a", " ", "c"]);
    assert_eq!(characters.decode(&characters.encode("cab a")), "cab a");
}

#[test]
fn runs_of_words_follow_the_words() {
    let pairs = Vocabulary::words().ngrams(2).learn(["a b a b", "b"]).unwrap();
    assert_eq!(pairs.terms(), ["b", "a", "a b", "b a"]);
    assert_eq!(pairs.encode("a b a"), [3, 2, 3, 4, 5]);
    assert_eq!(pairs.encode("b"), [2]);
    let letters = Vocabulary::characters().ngrams(3).learn(["aba"]).unwrap();
    assert_eq!(letters.terms(), ["a", "ab", "aba", "b", "ba"]);
}

#[test]
fn texts_become_ids_that_are_cut_and_padded() {
    let words = Vocabulary::words().learn(TEXTS).unwrap();
    assert_eq!(words.encode("The DOG sat, the cat?"), [3, 1, 7, 3, 2]);
    assert_eq!(words.padded("the dog", 4), [3, 1, 0, 0]);
    assert_eq!(words.padded("the cat sat", 2), [3, 2]);
    assert_eq!(words.decode(&[3, 1, 0, 99, -4]), "the [UNK] [UNK] [UNK]");
    assert_eq!(words.encode(" .,! "), [0; 0]);
    let source = words.sequences(["cat the cat", "", "dog"], [0, 1, 2], 2).unwrap();
    assert_eq!(source.lengths(), [2, 0, 1]);
    assert_eq!(source.fetch(0).unwrap().field("x").unwrap().values.as_i32().unwrap(), [2, 3]);
    // The shape is that of `longest`, however short the texts are, so that other texts fit the same model.
    assert_eq!(words.sequences(["cat"], [0], 6).unwrap().fields()[0].shape, [6]);
    assert!(words.sequences(["cat"], [0, 1], 6).is_err());
    let endless = words.sequences(["cat"], [0], usize::MAX).unwrap_err().to_string();
    assert!(endless.ends_with("elements are too many to pad a sequence to"), "{endless}");
}

/// The weights are those of Keras's `TextVectorization(output_mode="tf_idf")`: ln(1 + 4 / (1 + texts with
/// it)).
#[test]
fn texts_become_counts() {
    let words = Vocabulary::words().learn(TEXTS).unwrap();
    let text = "the the cat dog";
    assert_eq!(words.bag(text, Bag::MultiHot), [1., 1., 1., 0., 0., 0., 0.]);
    assert_eq!(words.bag(text, Bag::Count), [1., 1., 2., 0., 0., 0., 0.]);
    let (cat, the, others) = (2_f64.ln(), (1.0 + 4.0 / 3.0_f64).ln(), 3_f64.ln());
    let unknown = (cat + the + 4.0 * others) / 6.0;
    let expected = [unknown, cat, 2.0 * the, 0.0, 0.0, 0.0, 0.0].map(|weight| weight as f32);
    for (found, wanted) in words.bag(text, Bag::TfIdf).iter().zip(expected) {
        assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
    }
    let source = words.bags(TEXTS, [0, 1, 2, 3], Bag::Count).unwrap();
    let x = source.fetch(1).unwrap();
    assert_eq!(x.field("x").unwrap().values.as_f32().unwrap(), [0., 1., 2., 0., 0., 1., 0.]);
}

#[test]
fn what_is_opened_is_what_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocabulary.json");
    for vocabulary in [
        Vocabulary::words().ngrams(2).learn(TEXTS).unwrap(),
        Vocabulary::characters().keep_case().keep_punctuation().learn(["Ärger \"\\\u{1}\n", "?"]).unwrap(),
    ] {
        vocabulary.save(&path).unwrap();
        assert_eq!(Vocabulary::open(&path).unwrap(), vocabulary);
        assert_eq!(Vocabulary::from_json(&vocabulary.to_json()).unwrap(), vocabulary);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    let whole = std::fs::read_to_string(&path).unwrap();
    for (from, to, problem) in [
        ("\"vocabulary\":1", "\"vocabulary\":2", "version 2, not 1"),
        ("\"ngrams\":1", "\"ngrams\":0", "ngrams of 0"),
        ("\"?\"", "\"g\"", "distinct"),
        ("\"texts_with_term\":[", "\"texts_with_term\":[1,", "counts"),
        ("{", "[", "vocabulary:"),
    ] {
        std::fs::write(&path, whole.replacen(from, to, 1)).unwrap();
        let error = Vocabulary::open(&path).unwrap_err().to_string();
        assert!(error.contains("vocabulary.json") && error.contains(problem), "{error}");
    }
    assert!(Vocabulary::open(dir.path()).is_err() && Vocabulary::open(dir.path().join("no")).is_err());
    assert!(Vocabulary::words().learn(TEXTS).unwrap().save(dir.path().join("no/such")).is_err());
}

#[test]
fn settings_that_leave_no_term_are_refused() {
    let message = |builder: VocabularyBuilder| builder.learn(TEXTS).unwrap_err().to_string();
    assert!(message(Vocabulary::words().most(2)).starts_with("vocabulary: 2 ids leave none for a term"));
    assert_eq!(message(Vocabulary::words().ngrams(0)), "vocabulary: runs of 0 words, not of 1 to 16");
    assert_eq!(message(Vocabulary::words().least(9)), "vocabulary: no term comes 9 times or more in 4 texts");
    assert!(Vocabulary::words().learn(["", "?!"]).is_err());
}
