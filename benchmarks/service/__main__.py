"""`python -m benchmarks.service`.

It sets the OpenMP wait policy of the service. With the default policy, the threads of the
benchmark's forward passes spin for milliseconds on the cores that the service needs next.
"""

from eulerlora.commands import set_openmp_wait_policy

if __name__ == "__main__":
    set_openmp_wait_policy()
    from benchmarks.service.program import main

    main()
