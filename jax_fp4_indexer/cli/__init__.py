"""The command line: `jax-fp4-indexer demo | doctor | bench`. Its libraries are those of the extra `cli`.

    main.py       the commands and their options (click)
    doctor.py     what this machine is and which kernel each op would use
    demo.py       planted passages in a long context, scored and found
    bench.py      times of benchmark cases as a table
    screen.py     width and encoding of what is printed

`jax_fp4_indexer/__main__.py` starts it and says what to install where a library is missing.
"""
