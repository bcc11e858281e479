"""scikit-learn clients under skewed participation."""
