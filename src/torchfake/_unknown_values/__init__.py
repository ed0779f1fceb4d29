"""Questions about unknown values: who answers them, and which answers were given.

    question         a question about an unknown value, and the check of its answer
    answer_log       the list of the answers given
    typical_answers  the answers named "typical"
    answerers        who answers; the one place where answerers are asked
    finiteness       marks on unknown values that are not assumed to be finite
    assumptions      the assumption that unknown values are finite, followed through operators

Input: an unknown value that a program reads, or a count that a shape depends on. Output: an answer,
or None if nobody answers; then the program gets an UnknownValueError.
"""
