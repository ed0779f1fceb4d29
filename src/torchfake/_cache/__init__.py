"""The dispatch cache: the outcome of an operation is computed once and made again from a recipe.

A call of an operator has a *signature* (how many arguments are positional, which are named) and a
*key* (the metadata of its tensors and the values of its other arguments). Calls of equal signature
and key have outcomes of equal metadata, so the kernel runs for the first one only.

Input: calls that ``_dispatch`` has run without the cache. Output: recipes, from which ``_dispatch``
makes the results of later calls. Invariant: a result made from a recipe is the one that the kernel
would give; ``TORCHFAKE_CHECK_CACHE=1`` verifies that on each hit.

Its files, in reading order:

    keys         the signature and the key of a call
    recipes      what a recipe is: an outcome in terms of the arguments, and its short form
    other_sizes  recipes that follow from those of calls on other sizes
    learn        a recipe from a call before and after it ran
    apply        results from a recipe and the arguments of another call
    rules        the whole of a hit in one call, for operators that are called often
    cache        the tables of recipes: what is cached, what never is, the size limit, the switches
    verify       compares a recipe with what the kernel gave
"""
