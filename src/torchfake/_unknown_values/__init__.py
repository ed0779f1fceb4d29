"""Questions about values that do not exist: who answers them, and what was answered.

    question         what is asked: one question, and the check of its answer
    answer_log       the list of what was answered
    typical_answers  the answers that have the name "typical"
    answerers        who answers, and the one place where unknown values are asked for
    finiteness       which unknown values are not assumed to be finite: marks
    assumptions      what is assumed of unknown values, followed through operators

Input: an unknown value that a program reads, or a count that a shape depends on. Output: an answer,
or none. A program that reads a value for which nobody has an answer gets an UnknownValueError, as
it does without answerers.
"""
