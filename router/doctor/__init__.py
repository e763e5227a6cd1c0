"""What breaks the prefix: which prompts belong together, where they part, what it is, what it costs, what would help.

Prompts go in one by one (`checkup`), findings come out (`report`). Pure but for nothing: no files, no sockets, no
clock; the replay of an edit is given by the caller. Text stays in bounded memory and leaves only where asked for.
"""
