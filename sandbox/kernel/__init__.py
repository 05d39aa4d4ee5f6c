"""The kernel, as far as the sandbox needs it: thin typed system calls, seccomp, landlock.

No policy lives here. `calls` turns one call into one function and an errno into an OSError;
`seccomp` and `landlock` turn frozen rules into what the kernel takes. All of it is ctypes and
bytes: nothing to compile, nothing else to install.
"""
