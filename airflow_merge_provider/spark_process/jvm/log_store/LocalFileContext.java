package airflow_merge_provider;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.local.LocalConfigKeys;

/** What {@link LocalFiles} is, for callers of Hadoop's other interface to file systems. */
public class LocalFileContext extends ChecksumFs {
  public LocalFileContext(URI uri, Configuration configuration) throws IOException, URISyntaxException {
    super(new WithoutChecksums(configuration));
  }

  private static class WithoutChecksums extends DelegateToFileSystem {
    WithoutChecksums(Configuration configuration) throws IOException, URISyntaxException {
      super(
          FsConstants.LOCAL_FS_URI,
          new LocalFiles.WithoutProcesses(),
          configuration,
          FsConstants.LOCAL_FS_URI.getScheme(),
          false);
    }

    @Override
    public int getUriDefaultPort() {
      return -1;
    }

    @Override
    public FsServerDefaults getServerDefaults(Path path) throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    @Deprecated
    public FsServerDefaults getServerDefaults() throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    public boolean isValidName(String name) {
      return true;
    }
  }
}
