"""`python -m benchmarks.service`, whose threads wait as those of the service it measures.

By default those of its own passes would spin on for milliseconds, on the cores that the service
wants next.
"""

from eulerlora.openmp import set_openmp_wait_policy

if __name__ == "__main__":
    set_openmp_wait_policy()
    from benchmarks.service.program import main

    main()
