"""Where the ledger is told: other billing systems. base.py is the contract; one file a kind."""
