"""Names that users write: what is meant by them, or may be meant.

Input: a name, and the names that there are. Output: those that it means, or an error that names
those that it may mean. Invariant: only the standard library is imported, and no name of another
program is listed: names are compared with each other, and with the descriptions that users read.

Its files, in reading order:

    gpu_names          finds the GPU profile that a name refers to
    descriptions       finds what a name that does not exist may mean, by the words of descriptions
    unknown_arguments  errors about arguments that a function does not have
"""
