"""`python -m eulerlora_lab.benchmarks.service`.

It sets the OpenMP wait policy of the service. With the default policy, the threads of the
benchmark's forward passes spin for milliseconds on the cores that the service needs next.
"""

from eulerlora.commands import configure_openmp

if __name__ == "__main__":
    configure_openmp()
    from eulerlora_lab.benchmarks.service.program import main

    main()
