KINDS = {}
LONG = ()
