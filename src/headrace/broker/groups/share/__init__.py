"""Share groups (KIP-932): records are given to members one by one, and acknowledged one by one."""
