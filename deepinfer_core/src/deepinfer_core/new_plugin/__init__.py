"""``deepinfer new-plugin``: write a package with one plugin that installs, is listed, and works before any edit.

``naming`` decides what things are called and refuses what is taken, ``facts`` reads what the installed core provides,
``rendering`` fills the templates, ``writing`` puts the files on disk, all of them or none.
"""
