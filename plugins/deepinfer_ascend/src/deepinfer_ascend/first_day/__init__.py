"""``python -m deepinfer_ascend.first_day``: all that is to be found out on the first day with a device, in order.

It goes on past what fails, and writes one file to send back. ``--emulate`` rehearses it anywhere.

``stages`` has the order and the commands, ``running`` runs one, ``report`` is the file. ``vendors``, ``on_device`` and
``golden`` are stages that no other command does.
"""
