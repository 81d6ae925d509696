"""Questions and passages about general things, made by putting the teacher's own words into real sentences.

The pre-training sources are technical, legal and literary; a retrieval model also meets singers, rivers and football
clubs. The teacher knows such words. A topic is a word and its nearest neighbours among the teacher's word vectors; a
passage is one to three sentences of the sources with some of their content words replaced by words of one or two
topics; its question is a frame with a few of the same words. They mean little, but the teacher's vectors of them say
how it weighs and combines those words, and that is what the student has to learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

FUNCTION_WORDS = 300  # the most frequent words of the vocabulary are never replaced
FRAMES = [
    "who {} the {} of {}",
    "who wrote {} {}",
    "who is the {} of {} {}",
    "who plays {} in {} {}",
    "who sang {} {} {}",
    "who won the {} {} in {}",
    "who was the first {} {} in {}",
    "who invented the {} {}",
    "what is the {} of {}",
    "what is {} {}",
    "what does {} {} mean",
    "what are the {} of {} {}",
    "what causes {} {}",
    "what happened to {} in {} {}",
    "what kind of {} is {}",
    "what year did {} {} {}",
    "what is the difference between {} and {}",
    "which {} has the most {} in {}",
    "which {} is known for {}",
    "when was {} {} {}",
    "when did {} {} start in {}",
    "when does {} {} come out",
    "when was the last time {} won {}",
    "where is {} {} located",
    "where does the {} {} take place",
    "where did {} {} come from",
    "where was {} {} filmed",
    "how many {} are in {} {}",
    "how many {} does {} have",
    "how do {} {} work",
    "how to {} {} with {}",
    "how long is the {} {}",
    "how is {} used in {}",
    "why is {} {} called {}",
    "why did {} leave {}",
    "is {} a {} {}",
    "does {} affect {} {}",
    "can {} cause {}",
    "effects of {} on {} {}",
    "the role of {} in {}",
    "history of {} {}",
    "meaning of {} {}",
    "list of {} {} in {}",
    "{} {} of {}",
    "{} {} {}",
    "{} and {} in {}",
    "{} under {} {}",
    "methods for {} {} of {}",
    "summary of the discussion about {} {}",
    "what did they decide about the {} {}",
    "comparison of {} {} and {}",
    "relationship between {} and {} {}",
]


class Topics:
    """Words of the teacher and their neighbourhoods."""

    def __init__(self, words: Sequence[str], vectors: np.ndarray, size: int = 40) -> None:
        """`vectors`: `[n, d]` unit rows, the teacher's vector of each word."""
        self.words = list(words)
        self.common = {word for word in words[:FUNCTION_WORDS]}
        rows = []
        for start in range(0, len(vectors), 2048):
            scores = vectors[start : start + 2048] @ vectors.T
            rows.append(np.argpartition(-scores, size, axis=1)[:, :size].astype(np.int32))
        self.near = np.concatenate(rows)

    def draw(self, generator: random.Random) -> list[str]:
        """Three to twelve words of one or two topics."""
        chosen: list[str] = []
        for _ in range(generator.choice([1, 1, 2])):
            near = self.near[generator.randrange(FUNCTION_WORDS, len(self.words))]
            chosen += [self.words[i] for i in generator.sample(near.tolist(), generator.randint(3, 6))]
        return chosen

    def rewrite(self, sentence: str, topic: Sequence[str], generator: random.Random) -> tuple[str, list[str]]:
        """The sentence with a third to two thirds of its content words replaced, and the words put in."""
        tokens = sentence.split()
        places = [
            i
            for i, token in enumerate(tokens)
            if len(token) >= 4 and token.strip(".,;:!?\"'()").isalpha() and token.lower() not in self.common
        ]
        wanted = max(2, int(len(places) * generator.uniform(0.35, 0.7)))
        used: list[str] = []
        for place in generator.sample(places, min(wanted, len(places))):
            word = generator.choice(topic)
            used.append(word)
            old = tokens[place]
            bare = old.strip(".,;:!?\"'()")
            named = bare[:1].isupper() or generator.random() < 0.3
            tokens[place] = old.replace(bare, word.capitalize() if named else word)
        return " ".join(tokens), used

    def pair(self, sentences: Sequence[str], generator: random.Random) -> tuple[str, str] | None:
        """A question and a passage about the same made-up thing."""
        topic = self.draw(generator)
        parts, used = [], []
        for _ in range(generator.choice([1, 1, 2, 3])):
            text, words = self.rewrite(generator.choice(sentences), topic, generator)
            parts.append(text)
            used += words
        frame = generator.choice(FRAMES)
        if len(set(used)) < 2:
            return None
        left = generator.sample(sorted(set(used)), len(set(used)))
        asked = []
        for _ in range(frame.count("{}")):
            asked.append(left.pop() if left and generator.random() < 0.85 else generator.choice(topic))
        if generator.random() < 0.3:
            asked = [word.capitalize() for word in asked]
        question = frame.format(*asked) + ("?" if generator.random() < 0.4 else "")
        if generator.random() < 0.4:
            question = question[0].upper() + question[1:]
        return question, " ".join(parts)
