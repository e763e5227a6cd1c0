"""HTTP/1.1 on both sides of the router: two asyncio Protocols whose bytes are parsed by llhttp.

`server` faces clients, `upstream` faces replicas, `messages` holds what they pass to each other. Nothing here knows
about models, prompts or policies, and nothing outside this package sees a transport.
"""
