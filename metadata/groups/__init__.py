"""Consumer groups: the contract between coordinators and the metadata store, and how a group stores its members."""
