-- Adds only: programs of older schemas never see what is new here.

-- The port on which the agent serves blocks to the agents of its zone; 0: none. An older program that takes the address
-- over leaves its predecessor's port: neighbours find nobody there, and read from the object store.
ALTER TABLE agents ADD COLUMN zone_port integer NOT NULL DEFAULT 0;
