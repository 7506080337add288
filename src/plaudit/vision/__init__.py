"""What reward models and policies that look at pictures have in common: encoders, their weights, and small moves."""
