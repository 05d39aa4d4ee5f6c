"""The floor: the contract, the runtime's classes, the hook tables and the jail. Imports nothing of ours but itself."""

import logging

# A host that has less than the best is said in every verdict, in a worker's log and by `doctor`; a
# program that did not ask for a log gets no line of it on its stderr.
logging.getLogger("hookpool").addHandler(logging.NullHandler())
