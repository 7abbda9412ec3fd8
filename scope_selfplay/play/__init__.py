"""A person in the place of a policy or of the judge, and the judge asked again."""
