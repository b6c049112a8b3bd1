"""The program of one device, written op by op: `plan` decides how, `reshard` brings operands to where they are used."""
