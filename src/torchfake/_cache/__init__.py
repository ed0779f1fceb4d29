"""The dispatch cache: the kernel of an operation runs once, and later results follow a recipe.

A call of an operator has a *signature* (how many arguments are positional, which are named) and a
*key* (the metadata of its tensors and the values of its other arguments). A *recipe* says how to
build the *outcome* (the results, and changes of arguments) of all calls of one signature and key,
whose outcomes have equal metadata. So the kernel runs for the first of these calls only.

Input: calls without a cached recipe, and ``_eager_checks/checked_run``. Output: their results, and
recipes for later calls. Invariant: a result built from a recipe equals the result of the kernel;
``TORCHFAKE_CHECK_CACHE=1`` verifies that on each hit.

Its files, in reading order:

    keys            the signature and the key of a call
    recipes         the recipe: an outcome in terms of the arguments, and short forms for hot paths
    other_sizes     recipes derived from calls that differ in size only
    learn           derives a recipe from a call's arguments and its result
    apply           builds results from a recipe and the arguments of another call
    rules           one function for a whole hit, for operators that are called often
    cache           the tables of recipes: what is cached, what never is, the limit, the switches
    verify          compares a recipe with the result of the kernel
    inference_mode  which results are inference tensors
"""
